"""What a plan is written out as: one file per format."""
