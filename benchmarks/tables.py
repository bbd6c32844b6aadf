"""The tables of docs/benchmarks.md, from what was measured."""

MIB = 2**20
PLAIN, BLOCK, HAND = "plain", "region per block", "by hand"
ENGINES = {
    "jax": "`jax.checkpoint`",
    "tensorflow": "`tf.recompute_grad`",
    "torch": "`torch.utils.checkpoint`",
}
HEADS = (
    "strategy",
    "peak",
    "kept",
    "arithmetic",
    "step time",
    "first step",
    "equal",
)
PEAK, COMPILED, EAGER = 1.02, 1.05, 1.10
SETUP = {"jax": 1.7, "tensorflow": 2.5}


def model_table(found):
    """One row a strategy; stock's are compared with stock's own plain row."""
    lines = []
    for kind in found:
        base = kind["rows"].get(PLAIN, {})
        for name, row in kind["rows"].items():
            if not (kind["stock"] and name == PLAIN and "error" not in row):
                lines.append([name, *cells(row, base, kind)])
    return HEADS, lines


def cells(row, base, found):
    if "error" in row:
        return ["-"] * 5 + [row["error"]]
    return [
        size(row["peak"], base.get("peak")),
        size(row["held"], base.get("held")),
        share(row["flops"], base.get("flops")),
        timed(row, "time", "error of time"),
        setup(row, base, found),
        f"NO: {row['fault']}" if row["fault"] else "yes",
    ]


def size(value, base):
    if value is None:
        return "-"
    return f"{value / MIB:.1f} MiB ({share(value, base)})"


def share(value, base):
    return f"{value / base:.2f}" if value is not None and base else "-"


def timed(row, name, error):
    if name not in row:
        return "-"
    if row[name] == 1:
        return "1.00"
    return f"{row[name]:.2f} ±{row[error]:.2f}"


def compiles(found):
    return found["backend"] != "torch" and "-eager" not in found["model"]


def setup(row, base, found):
    """Seconds; a ratio only if plain compiles too."""
    text = f"{row['setup']:.1f} s"
    if not compiles(found):
        return text
    return f"{text} ({share(row['setup'], base.get('setup'))})"


def beside_table(all_found):
    """A region around each block against the engine's own checkpoint."""
    heads = ("model", "backend", "peak", "step time", "first step", "within")
    lines = []
    for found in all_found:
        rows = found["rows"]
        block, hand = rows.get(BLOCK, {}), rows.get(HAND, {})
        if found["stock"] or found["model"] == "chain" or not block:
            continue
        if "error" in block or "error" in hand or "time to hand" not in block:
            continue
        peak = block["peak"] / hand["peak"]
        lines.append(
            [
                found["model"],
                found["backend"],
                f"{peak:.2f}",
                timed(block, "time to hand", "error to hand"),
                share(block["setup"], hand["setup"])
                if compiles(found)
                else "-",
                within(peak, block, COMPILED if compiles(found) else EAGER),
            ]
        )
    return heads, lines


def within(peak, block, limit):
    """Whether peak and time are as wanted, as far as the error tells."""
    time, error = block["time to hand"], block["error to hand"]
    if peak > PEAK or time - error > limit:
        return "NO"
    return "yes" if time + error <= limit else "not clear"


def chain_table(all_found):
    heads = ("backend", "plain", BLOCK, HAND, "by hand, ordered", "at most")
    lines = []
    for found in all_found:
        if found["model"] != "chain" or not compiles(found):
            continue
        rows = found["rows"]
        base = rows[PLAIN].get("setup")
        cells = [share(rows.get(h, {}).get("setup"), base) for h in heads[2:-1]]
        limit = f"{SETUP[found['backend']]:.1f}"
        lines.append([found["backend"], f"{base:.1f} s", *cells, limit])
    return heads, lines


def calls_table(all_found):
    heads = ("backend", "call", "forward", "with gradient", "over plain")
    lines = []
    for found in all_found:
        if found["model"] != "calls":
            continue
        base = found["rows"][PLAIN]
        for name, row in found["rows"].items():
            if found["stock"] and name == PLAIN:
                continue
            if "error" in row:
                cells = ["-", "-", row["error"]]
            else:
                times = [row["forward"], row["both"], row["both"]]
                times[2] -= base["both"]
                cells = [f"{t:.0f} µs" for t in times]
            lines.append([found["backend"], name, *cells])
    return heads, lines


def markdown(table):
    heads, lines = table
    rules = ["---"] + ["---:"] * (len(heads) - 1)
    rows = [heads, rules, *lines]
    escaped = [[str(x).replace("|", "\\|") for x in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in escaped) + "\n"
