"""Hardware profiles as data, and their calibration."""
