"""What is known of whole plans only: what a step takes, and when messages pass."""
