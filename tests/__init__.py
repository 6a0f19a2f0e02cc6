"""What holds, tried on real things."""
