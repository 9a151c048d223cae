"""Plant small faults in the package, one at a time, and count how many the tests catch."""
