"""The stand-in nvidia-smi of a simulated node, as the text of a POSIX shell script. Pure.

A program of its own, so that whoever runs it meets real processes: exit codes, signals, pipes, time. It finds the
driver root by its own path, notes each call in ``var/log/nvidia-smi.calls`` and keeps a GPU's slice in
``var/state/<uuid>/time_slice``.
"""

import shlex
from collections.abc import Sequence
from typing import Final

from dra_driver.devices.scenario import Tool, ToolBehaviour

_SIGNALS: Final = {"SEGV": 11, "KILL": 9, "TERM": 15, "ABRT": 6, "BUS": 7}

_HEAD: Final = """\
#!/bin/sh
# Stand-in for nvidia-smi on a simulated node.
root=${0%/usr/bin/nvidia-smi}
[ "$root" = "$0" ] && root=
state=$root/var/state
printf '%s\\n' "$*" >> "$root/var/log/nvidia-smi.calls"

fail() { printf '%s\\n' "$2" >&2; exit "$1"; }

if [ "$1" = -L ] || [ "$1" = --list-gpus ]; then
    while read -r uuid minor product; do
        printf 'GPU %s: %s (UUID: %s)\\n' "$minor" "$product" "$uuid"
    done < "$root/var/state/gpus"
    exit 0
fi
[ "$1" = compute-policy ] || fail 2 "Invalid combination of input arguments. Only compute-policy and -L work here."
shift
uuid= command= value=
while [ $# -gt 0 ]; do
    case $1 in
        -i|--id) uuid=$2; shift ;;
        --id=*) uuid=${1#*=} ;;
        --set-timeslice) command=set-timeslice; value=$2; shift ;;
        --set-timeslice=*) command=set-timeslice; value=${1#*=} ;;
        -l|--list) command=list ;;
        *) fail 2 "Option \\"$1\\" is not recognized." ;;
    esac
    [ $# -gt 0 ] && shift
done
[ -n "$command" ] || fail 2 "compute-policy: nothing to do."
[ -z "$uuid" ] || [ -d "$state/$uuid" ] || fail 6 "No devices were found"
"""

_COUNT: Final = """\
# Which call for this GPU is it? noclobber makes the file only if nobody else did.
call=1
set -C
until { printf '' > "$state/${uuid:-.}/$command.$call"; } 2>/dev/null; do call=$((call + 1)); done
set +C
"""

_TAIL: Final = """\
frame() {
    printf '+-------------------------------------+\\n'
}
list_one() {
    slice=0
    [ -r "$state/$2/time_slice" ] && read -r slice < "$state/$2/time_slice"
    case $slice in 1) name=Short ;; 2) name=Medium ;; 3) name=Long ;; *) name=Default ;; esac
    printf '| %3s   Timeslice   %11s       |\\n' "$1" "$name"
}

if [ "$command" = list ]; then
    frame
    printf '| GPU compute policies:               |\\n'
    printf '| GPU     Name           Value        |\\n'
    printf '|=====================================|\\n'
    index=0
    while read -r each rest; do
        case ${uuid:-$each} in "$each") list_one "$index" "$each" ;; esac
        index=$((index + 1))
    done < "$root/var/state/gpus"
    frame
    exit 0
fi
case $value in
    0|1|2|3) ;;
    *) fail 2 "Timeslice \\"$value\\" is not valid: 0=DEFAULT, 1=SHORT, 2=MEDIUM, 3=LONG" ;;
esac
[ -n "$uuid" ] || fail 2 "compute-policy: a GPU is needed (-i)."
# Overwritten in place: a reader never finds the file empty.
printf '%s\\n' "$value" 1<> "$state/$uuid/time_slice"
printf 'Set timeslice for GPU %s to %s.\\nAll done.\\n' "$uuid" "$value"
"""


def script(tool: Tool, uuids: Sequence[str]) -> str:
    """The script for a scenario's tool; ``uuids`` by position, to name the GPUs that misbehave."""
    parts = [_HEAD]
    if any(behaviour.calls for behaviour in tool.behaviours):
        parts.append(_COUNT)
    if tool.delay_ms:
        parts.append(f"sleep {tool.delay_ms / 1000:g}\n")
    if tool.behaviours:
        cases = "".join(_case(behaviour, uuids) for behaviour in tool.behaviours)
        parts.append(f'case "$command $uuid ${{call:-0}}" in\n{cases}esac\n')
    return "\n".join([*parts, _TAIL])


def _case(behaviour: ToolBehaviour, uuids: Sequence[str]) -> str:
    uuid = "*" if behaviour.gpu is None else uuids[behaviour.gpu]
    calls = [str(call) for call in behaviour.calls] if behaviour.calls else ["*"]
    pattern = "|".join(f"{shlex.quote(behaviour.command)}' '{uuid}' '{call}" for call in calls)
    return f"    {pattern})\n{_deed(behaviour)}        ;;\n"


def _deed(behaviour: ToolBehaviour) -> str:
    lines = []
    if behaviour.stdout:
        lines.append(f"printf '%s\\n' {shlex.quote(behaviour.stdout)}")
    if behaviour.stderr:
        lines.append(f"printf '%s\\n' {shlex.quote(behaviour.stderr)} >&2")
    if behaviour.print_megabytes:
        lines.append(f"yes 'nvidia-smi has much to say' | head -c {behaviour.print_megabytes * 1_000_000}; echo")
    if behaviour.hang:
        lines.append("sleep 86400")
    if behaviour.signal is not None:
        lines.append(f"kill -{_SIGNALS[behaviour.signal]} $$")
    lines.append(f"exit {behaviour.exit_code}")
    return "".join(f"        {line}\n" for line in lines)
