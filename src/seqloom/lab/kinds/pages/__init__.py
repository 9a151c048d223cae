"""What error pages show of the test rows of a task."""
