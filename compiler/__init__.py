"""What things are, and what is decided about them."""
