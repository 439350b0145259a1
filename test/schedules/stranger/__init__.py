"""Another project's schedule, mask and target: each is added from here, with no edit elsewhere."""
