"""People's own data in, a trained model out: what stands between the commands and the trainer."""
