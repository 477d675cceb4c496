"""The revisions in order, one a line: two branches that each add one conflict here, in git, where it is seen."""

REVISIONS = (
    "0001_first_schema",
    "0002_limit_bursts",
    "0003_key_rotation",
    "0004_model_aliases",
    "0005_stored_responses",
    "0006_batches",
    "0007_tenant_share",
    "0008_measured_precision",
    "0009_marks",
    "0010_rule_exceptions",
)
