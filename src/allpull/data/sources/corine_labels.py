"""The label names of BigEarthNet: 43 classes of CORINE Land Cover, and the 19 groups of them.

Sumbul et al., "BigEarthNet: A Large-Scale Benchmark Archive" (IGARSS 2019) for the 43; Sumbul et al., "BigEarthNet-MM"
(IEEE GRSM 2021) for the 19, in the order of the authors' own ``label_indices.json``. Eleven of the 43 are in no group.
"""

from __future__ import annotations

CLASSES_43 = (
    "Continuous urban fabric",
    "Discontinuous urban fabric",
    "Industrial or commercial units",
    "Road and rail networks and associated land",
    "Port areas",
    "Airports",
    "Mineral extraction sites",
    "Dump sites",
    "Construction sites",
    "Green urban areas",
    "Sport and leisure facilities",
    "Non-irrigated arable land",
    "Permanently irrigated land",
    "Rice fields",
    "Vineyards",
    "Fruit trees and berry plantations",
    "Olive groves",
    "Pastures",
    "Annual crops associated with permanent crops",
    "Complex cultivation patterns",
    "Land principally occupied by agriculture, with significant areas of natural vegetation",
    "Agro-forestry areas",
    "Broad-leaved forest",
    "Coniferous forest",
    "Mixed forest",
    "Natural grassland",
    "Moors and heathland",
    "Sclerophyllous vegetation",
    "Transitional woodland/shrub",
    "Beaches, dunes, sands",
    "Bare rock",
    "Sparsely vegetated areas",
    "Burnt areas",
    "Inland marshes",
    "Peatbogs",
    "Salt marshes",
    "Salines",
    "Intertidal flats",
    "Water courses",
    "Water bodies",
    "Coastal lagoons",
    "Estuaries",
    "Sea and ocean",
)

GROUPS_19 = (
    ("Urban fabric", (0, 1)),
    ("Industrial or commercial units", (2,)),
    ("Arable land", (11, 12, 13)),
    ("Permanent crops", (14, 15, 16, 18)),
    ("Pastures", (17,)),
    ("Complex cultivation patterns", (19,)),
    ("Land principally occupied by agriculture, with significant areas of natural vegetation", (20,)),
    ("Agro-forestry areas", (21,)),
    ("Broad-leaved forest", (22,)),
    ("Coniferous forest", (23,)),
    ("Mixed forest", (24,)),
    ("Natural grassland and sparsely vegetated areas", (25, 31)),
    ("Moors, heathland and sclerophyllous vegetation", (26, 27)),
    ("Transitional woodland, shrub", (28,)),
    ("Beaches, dunes, sands", (29,)),
    ("Inland wetlands", (33, 34)),
    ("Coastal wetlands", (35, 36)),
    ("Inland waters", (38, 39)),
    ("Marine waters", (40, 41, 42)),
)
"""Name of each of the 19, and the numbers of those of the 43 that are in it."""

TO_19 = {old: new for new, (_, group) in enumerate(GROUPS_19) for old in group}
"""Of the 43 → of the 19."""
