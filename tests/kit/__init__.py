"""What tests of several rooms share. Nothing here is a test, and nothing here knows what a test expects."""
