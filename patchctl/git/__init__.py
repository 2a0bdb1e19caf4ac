"""The only package that runs git or touches its files: objects, packs, refs, fetches, work trees."""
