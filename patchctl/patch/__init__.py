"""Parse, apply and write patch files, as bytes. Knows nothing of git repositories or manifests."""
