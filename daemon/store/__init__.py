"""The store: every table, the one writer, the migrations at start. SQLAlchemy is used here and in owners' queries."""
