"""Results made visible: plain arrays in, pictures out."""
