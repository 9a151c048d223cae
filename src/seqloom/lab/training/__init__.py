"""One training: settings, loop, checkpoints, the run on disk, prediction."""
