"""What calls choose: schedules, tiles, orders, splits and workspace over a grid of calls."""
