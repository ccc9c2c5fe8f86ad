"""One name per GPU model, whatever the driver calls it: what flavors, prices and pages say.

A name that is not in the table stays as the driver wrote it, so a new board is usable at once.
"""

import re
from typing import Final

_NAMES: Final = {
    "GB200": "GB200 186GB",
    "B300 SXM6 AC": "B300 SXM 288GB",
    "B200": "B200 SXM 180GB",
    "H200": "H200 SXM 141GB",
    "H200 NVL": "H200 NVL 141GB",
    "GH200 480GB": "GH200 96GB",
    "H100 80GB HBM3": "H100 SXM 80GB",
    "H100 SXM5 80GB": "H100 SXM 80GB",
    "H100 PCIe": "H100 PCIe 80GB",
    "H100 NVL": "H100 NVL 94GB",
    "H800": "H800 SXM 80GB",
    "H20": "H20 SXM 96GB",
    "A100-SXM4-80GB": "A100 SXM 80GB",
    "A100-SXM4-40GB": "A100 SXM 40GB",
    "A100-SXM-80GB": "A100 SXM 80GB",
    "A100-SXM-40GB": "A100 SXM 40GB",
    "A100 80GB PCIe": "A100 PCIe 80GB",
    "A100-PCIE-40GB": "A100 PCIe 40GB",
    "A800-SXM4-80GB": "A800 SXM 80GB",
    "A800 80GB PCIe": "A800 PCIe 80GB",
    "A40": "A40 48GB",
    "A30": "A30 24GB",
    "A16": "A16 16GB",
    "A10": "A10 24GB",
    "A10G": "A10G 24GB",
    "A2": "A2 16GB",
    "L40S": "L40S 48GB",
    "L40": "L40 48GB",
    "L20": "L20 48GB",
    "L4": "L4 24GB",
    "T4": "T4 16GB",
    "P4": "P4 8GB",
    "P40": "P40 24GB",
    "P100-PCIE-16GB": "P100 PCIe 16GB",
    "P100-SXM2-16GB": "P100 SXM 16GB",
    "V100-SXM2-16GB": "V100 SXM 16GB",
    "V100-SXM2-32GB": "V100 SXM 32GB",
    "V100-SXM3-32GB": "V100 SXM 32GB",
    "V100-PCIE-16GB": "V100 PCIe 16GB",
    "V100-PCIE-32GB": "V100 PCIe 32GB",
    "RTX A4000": "RTX A4000 16GB",
    "RTX A5000": "RTX A5000 24GB",
    "RTX A6000": "RTX A6000 48GB",
    "RTX 4000 Ada Generation": "RTX 4000 Ada 20GB",
    "RTX 5000 Ada Generation": "RTX 5000 Ada 32GB",
    "RTX 6000 Ada Generation": "RTX 6000 Ada 48GB",
    "RTX PRO 6000 Blackwell Server Edition": "RTX PRO 6000 96GB",
    "RTX PRO 6000 Blackwell Workstation Edition": "RTX PRO 6000 96GB",
    "RTX 2080 SUPER": "RTX 2080 Super 8GB",
    "RTX 2080 Ti": "RTX 2080 Ti 11GB",
    "RTX 3080": "RTX 3080 10GB",
    "RTX 3090": "RTX 3090 24GB",
    "RTX 3090 Ti": "RTX 3090 Ti 24GB",
    "RTX 4070": "RTX 4070 12GB",
    "RTX 4080": "RTX 4080 16GB",
    "RTX 4080 SUPER": "RTX 4080 Super 16GB",
    "RTX 4090": "RTX 4090 24GB",
    "RTX 4090 D": "RTX 4090 D 24GB",
    "RTX 5080": "RTX 5080 16GB",
    "RTX 5090": "RTX 5090 32GB",
    "AMD Instinct MI210": "MI210 64GB",
    "AMD Instinct MI250X": "MI250X 128GB",
    "AMD Instinct MI300X": "MI300X 192GB",
    "AMD Instinct MI300X OAM": "MI300X 192GB",
    "AMD Instinct MI325X": "MI325X 256GB",
    "AMD Instinct MI355X": "MI355X 288GB",
}
_MAKER: Final = re.compile(r"^(?:NVIDIA |Tesla |GeForce |Quadro )+")
_SLICE: Final = re.compile(r"^(?P<board>.+?) MIG (?P<profile>\d+g\.\d+gb\S*)$")


def canonical(raw: str) -> str:
    """Return our name for what a driver calls a GPU; a slice becomes "H100 MIG 1g.10gb"."""
    plain = " ".join(raw.split())
    slice_ = _SLICE.match(plain)
    if slice_ is not None:
        board = canonical(slice_["board"])
        family = board.split()[0] if board != slice_["board"] else board
        return f"{family} MIG {slice_['profile']}"
    return _NAMES.get(_MAKER.sub("", plain), plain)
