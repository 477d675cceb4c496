"""The engine of an encoder: texts in, one vector each out, without pages and without steps that depend on another."""
