"""Lets the tests here import the networks they share."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
