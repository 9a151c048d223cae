"""The lab: data in, trained and compared models out; everything behind the commands."""
