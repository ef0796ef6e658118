#!/usr/bin/env python3
"""Reads machine code (cuobjdump -sass) and reports registers that a warpgroup instruction (HGMMA) reads, A or metadata,
and that another instruction writes before the wait for it. ptxas of CUDA 13.0 takes such registers for free as soon as
the instruction is issued, while the tensor cores read them later: results are then wrong now and then, on the device
alone. Code is read in the order of its addresses, from each HGMMA to the next wait.

  cuobjdump -sass many_rows_cuda.cu.o | find_overwritten.py

Before that it must find what is planted in code below.
"""
import re
import sys

KERNELS, LEAST = 7, 12  # kernels, and HGMMA of each: fewer would mean that the listing is not understood
WAIT = "WARPGROUP.DEPBAR.LE gsb0, 0x0"
NO_RESULT = ("ST", "RED", "BRA", "SYNCS", "WARP", "BAR", "HGMMA", "LDGSTS", "R2UR", "R2P", "BSSY", "BSYNC", "UTMA",
             "NOP", "EXIT", "MEMBAR")


def instructions(lines):
    """Kernel, address and text of each instruction."""
    kernel = "?"
    for line in lines:
        if found := re.search(r"Function : (\S+)", line):
            kernel = found[1]
        elif found := re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;", line):
            yield kernel, found[1], found[2]


def written(text):
    """Registers that an instruction writes."""
    text = re.sub(r"^@!?U?P\w+\s+", "", text)
    name, _, operands = text.partition(" ")
    if name.startswith(NO_RESULT):
        return set()
    found = re.match(r"\s*(?:U?P\w+,\s*)?R(\d+)\b", operands)
    if not found:
        return set()
    count = 4 if ".128" in name or name.endswith(".4") else 2 if ".64" in name or name.startswith(("CS2R", "IMAD.WIDE")) else 1
    return {int(found[1]) + i for i in range(count)}


def read_by_wgmma(text):
    """Registers of A, four, and of the metadata."""
    found = re.match(r"(?:@!?U?P\w+\s+)?HGMMA\S*\s+R\d+,\s*R(\d+),\s*gdesc\[\w+\],\s*(?:R\d+|RZ|!UPT)"
                     r"(?:,\s*R(\d+))?", text)
    if not found:
        sys.exit(f"expected HGMMA with A in registers, found {text}")
    metadata = {int(found[2])} if "HGMMA.SP" in text else set()
    return {int(found[1]) + i for i in range(4)} | metadata


def goes_back(address, text):
    found = re.search(r"\bBRA\b.*\b0x([0-9a-f]+)", text)
    return bool(found) and int(found[1], 16) <= int(address, 16)


def overwritten(lines):
    """How many HGMMA each kernel has, and a line for each register that is overwritten too early."""
    code, counts, faults = list(instructions(lines)), {}, []
    for i, (kernel, address, text) in enumerate(code):
        if "HGMMA" not in text:
            continue
        busy = read_by_wgmma(text)
        counts[kernel] = counts.get(kernel, 0) + 1
        for other_kernel, other_address, other in code[i + 1:]:
            if other_kernel != kernel or goes_back(other_address, other):
                sys.exit(f"{kernel}: expected a wait behind {address} {text}, found {other_address} {other}")
            if WAIT in other:
                break
            for register in sorted(busy & written(other)):
                faults.append(f"{kernel}: R{register} of {address} {text}\n    is written by {other_address} {other}")
    return counts, faults


def check_on_planted():
    def listing(*texts):
        return ["Function : planted"] + [f"        /*{16 * i:04x}*/    {text} ;" for i, text in enumerate(texts)]

    sparse = "HGMMA.SP.64x256x32.F32.BF16 R24, R156, gdesc[UR8], R24, R152, 0x1, gsb0"
    dense = "HGMMA.64x128x16.F32.BF16 R24, R88, gdesc[UR8], R24, gsb0"
    for expected, *code in ((1, dense, "LOP3.LUT R91, R12, 0xf000f, RZ, 0xc0, !PT", WAIT),
                            (0, dense, WAIT, "MOV R91, R1"),
                            (1, sparse, "@P0   LDS.U8 R152, [R9+0x400]", WAIT),
                            (2, sparse, "LDS.64 R158, [R9]", "@P1 BRA 0x9000", WAIT),
                            (0, sparse, "@!P0  STS [R152], R156", "LDS R153, [R9]", WAIT)):
        _, faults = overwritten(listing(*code))
        if len(faults) != expected:
            sys.exit(f"planted code: expected {expected} faults, found {faults}: {code}")


check_on_planted()
of_kernels, all_faults = overwritten(sys.stdin)
print("\n".join(all_faults))
if len(of_kernels) != KERNELS or min(of_kernels.values()) < LEAST:
    sys.exit(f"expected {KERNELS} kernels of at least {LEAST} HGMMA, found {of_kernels}")
print(f"{sum(of_kernels.values())} HGMMA, {len(all_faults)} registers overwritten too early")
sys.exit(1 if all_faults else 0)
