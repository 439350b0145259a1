"""The features and limits of each chip."""
