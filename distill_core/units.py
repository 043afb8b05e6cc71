"""Sizes, counts and times as people read them. GiB is 1024³ bytes, GB is 1000³; screens show GiB for memory, GB for disk."""

GIB = 1024**3


def gib(num_bytes: float) -> float:
    """Bytes to GiB."""
    return num_bytes / GIB


def show_gib(num_bytes: float) -> str:
    """'1.25 GiB', or MiB below a tenth of a GiB."""
    if abs(num_bytes) < 0.1 * GIB:
        return f"{num_bytes / 1024**2:.1f} MiB"
    return f"{num_bytes / GIB:.2f} GiB"


def show_disk(num_bytes: float) -> str:
    """'33 GB', '1.4 MB', '12 kB': powers of 1000, as disks are sold."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(num_bytes) >= size:
            value = num_bytes / size
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return f"{num_bytes:.0f} bytes"


def show_count(count: float) -> str:
    """'2.16M', '135M', '1.2B', '820'."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(count) >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:.0f}"


def show_time(seconds: float | None) -> str:
    """'45 s', '3 min 20 s', '2 h 05 min'; 'unknown' for None."""
    if seconds is None:
        return "unknown"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
