"""Search an orbit: the pose that brings one image onto another, for many pairs at once."""
