"""What the distribution has, feature by feature, and the pages generated from it."""
