def scan_jsonl(
    data: bytes | bytearray | memoryview,
    start: int,
    first_line: int,
    keys: tuple[str | None, str, str, str | None, str | None, str | None],
    phases: tuple[tuple[str, int], ...],
    kinds: tuple[tuple[str, int], ...],
) -> tuple[int, int, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes]: ...
