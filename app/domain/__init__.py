"""Pure: no input, no output, no clock."""
