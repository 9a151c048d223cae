"""Which model do these data need? Baselines and models under one budget of time, measured fairly."""
