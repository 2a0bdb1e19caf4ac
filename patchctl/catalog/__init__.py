"""What the distribution holds, feature by feature, and the pages that are generated from it."""
