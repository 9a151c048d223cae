// Include the equations of the cell, gated/<CELL>.cuh; those of a compiled cell precede the kernel's source.
#pragma once
#include "gated/setting.cuh"

// clang-format off: spaces around the slash would be part of the name
#define CELL_FILE_OF(cell) #cell
#define CELL_FILE(cell) CELL_FILE_OF(gated/cell.cuh)
// clang-format on
#ifdef CELL
#include CELL_FILE(CELL)
#endif
