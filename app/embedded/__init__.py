"""What stands in for the cloud on a laptop and in the tests."""
