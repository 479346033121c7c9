"""Faults in what has to be kept, for the auditor to find."""

_NEW = "gen_random_uuid()"
_EVIDENCE = (
    f"INSERT INTO evidence_refs SELECT {_NEW}, attempt_id, NULL::uuid, 'probe', 'passed', 's', id, "
    f"clock_fact(), {_NEW} FROM artifact_refs LIMIT 1"
)
_OUTPUT = (
    "INSERT INTO runner_output_refs SELECT attempt_id, attempt_id, 'n', 'text', id, NULL, 'd', "
    "clock_fact() FROM artifact_refs LIMIT 1"
)
_EVIDENCE_OF_OUTPUT = (
    f"INSERT INTO evidence_refs SELECT {_NEW}, attempt_id, attempt_id, 'probe', 'passed', 's', "
    f"NULL::uuid, clock_fact(), {_NEW} FROM artifact_refs LIMIT 1"
)
_REMOVING = "UPDATE artifact_refs SET held_at = NULL, held_by = NULL, state = 'removing'"
_OTHER_EVENT = (
    "UPDATE attempt_events SET payload = payload || jsonb_build_object('artifact_id', 'x') "
    "WHERE event_type = 'legal_hold_set'"
)
_CAME_BACK = (
    "INSERT INTO removed_partitions SELECT relname, 'attempt_heartbeats', '2000-01-01', "
    "'2000-01-02', clock_fact(), clock_fact() FROM pg_class "
    "WHERE relname ~ '^attempt_heartbeats_[0-9]+$'"
)

KEPT_FAULTS = {
    "holds-kept": [
        "UPDATE artifact_refs SET state = 'removing' WHERE held_at IS NOT NULL",
        "UPDATE artifact_refs SET held_reason = NULL WHERE held_at IS NOT NULL",
        "DELETE FROM attempt_events WHERE event_type = 'legal_hold_set'",
        _OTHER_EVENT,
    ],
    "kept-stays": [
        f"{_REMOVING}, attempt_id = '{{running}}'",
        f"{_REMOVING}, retention_class = 'legal_hold'",
        f"WITH e AS ({_EVIDENCE}) {_REMOVING}",
        f"WITH o AS ({_OUTPUT}), e AS ({_EVIDENCE_OF_OUTPUT}) {_REMOVING}",
    ],
    "no-dangling": [
        "UPDATE raw_log_refs SET artifact_ref_id = gen_random_uuid()",
        f"WITH e AS ({_EVIDENCE}) DELETE FROM artifact_refs",
        _EVIDENCE_OF_OUTPUT,
        f"WITH o AS ({_OUTPUT}) DELETE FROM artifact_refs",
    ],
    "partitions": [_CAME_BACK],
}
