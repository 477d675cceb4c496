"""/v1/responses: items in, items out, as one object or as a stream of named events."""
