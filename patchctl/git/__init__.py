"""The only room that runs git, or reads and writes its files: objects, packs, refs, fetches, work trees."""
