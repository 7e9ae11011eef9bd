"""Pure tensor primitives shared by more than one room; imports nothing of ours."""
