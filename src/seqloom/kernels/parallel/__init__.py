"""Parallel scans for cells whose recurrence is linear."""
