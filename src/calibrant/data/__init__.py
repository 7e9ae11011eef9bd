"""Data: sets of images, their splits, and what is done to them on the device."""
