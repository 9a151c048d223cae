// The equations of the cell: gated/<CELL>.cuh.
#pragma once
#include "gated/setting.cuh"

#define CELL_FILE_OF(cell) #cell
#define CELL_FILE(cell) CELL_FILE_OF(gated/cell.cuh)
#include CELL_FILE(CELL)
