// The convolution of a layer on the matrix units of a GPU: as in convolution.cu, but numbers are
// multiplied in half precision, split into a rounded part of 11 bits and the remainder if SPLIT is
// set, and summed in single precision. A block of threads computes all filters of TILE × TILE
// pixels, each of its warps two rows of them; 16 channels and one row of the filters are in shared
// memory at a time. The host defines FIRST_CHANNELS, SECOND_CHANNELS, FILTERS, TOTAL_FILTERS, SIZE,
// HEIGHT, WIDTH and SPLIT.

#include <cuda_fp16.h>

#define TILE 16
#define DEPTH 16
#define FILTER_GROUPS ((FILTERS + 7) / 8)
#define PADDED_FILTERS (8 * FILTER_GROUPS)
#define SIDE (TILE + SIZE - 1)
#define BEFORE ((SIZE - 1) / 2)
#define PARTS (SPLIT ? 2 : 1)
#define THREADS (16 * TILE)
#define PITCH (DEPTH + 8)  // padded to avoid shared memory bank conflicts

// sums (16, 8) += a (16, 16) b (16, 8). The PTX manual (mma.m16n8k16) defines the elements that
// each thread holds.
__device__ __forceinline__ void multiply(float sums[4], const unsigned a[4], const unsigned b[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ unsigned load_pair(const half* fragment) {
    return *(const unsigned*)fragment;
}

// Load DEPTH channels, from chunk · DEPTH on, of the tile's pixels and those around it, normalized
// and in parts. Those outside of the image are 0. A thread loads the same two channels of many
// pixels, of which it writes two halves at once.
__device__ __forceinline__ void load_inputs(
    const float* __restrict__ first, const float* __restrict__ second,
    const int* __restrict__ channels, int count, const float* __restrict__ low,
    const float* __restrict__ scale, int chunk, half inputs[PARTS][SIDE][SIDE][PITCH]) {
    const int pair = threadIdx.x % (DEPTH / 2) * 2, start = threadIdx.x / (DEPTH / 2);
    const int top = blockIdx.y * TILE - BEFORE, left = blockIdx.x * TILE - BEFORE;
    const float* source[2];
    float lows[2], scales[2];
    int step[2];
#pragma unroll
    for (int q = 0; q < 2; q++) {
        int number = chunk * DEPTH + pair + q, channel = number < count ? channels[number] : 0;
        bool is_first = channel < FIRST_CHANNELS;
        step[q] = is_first ? FIRST_CHANNELS : SECOND_CHANNELS;
        source[q] = number < count ? (is_first ? first + channel : second + channel - FIRST_CHANNELS)
                                   : nullptr;
        if (number < count) {
            source[q] += (long)blockIdx.z * HEIGHT * WIDTH * step[q];
            lows[q] = low[number], scales[q] = scale[number];
        }
    }
    for (int p = start; p < SIDE * SIDE; p += THREADS / (DEPTH / 2)) {
        int x = p % SIDE, y = p / SIDE, source_x = left + x, source_y = top + y;
        bool inside = source_y >= 0 && source_y < HEIGHT && source_x >= 0 && source_x < WIDTH;
        half2 high, rest;
        float values[2];
#pragma unroll
        for (int q = 0; q < 2; q++)
            values[q] = inside && source[q]
                            ? (source[q][(source_y * WIDTH + source_x) * step[q]] - lows[q]) *
                                  scales[q]
                            : 0;
        high = __floats2half2_rn(values[0], values[1]);
        *(half2*)&inputs[0][y][x][pair] = high;
        if (SPLIT) {
            rest = __floats2half2_rn(values[0] - __low2float(high), values[1] - __high2float(high));
            *(half2*)&inputs[PARTS - 1][y][x][pair] = rest;
        }
    }
}

// Compute maps (n, H, W, FILTERS of TOTAL_FILTERS) from the channels (count,) of first (n, H, W,
// FIRST_CHANNELS) and second (n, H, W, SECOND_CHANNELS), numbered through both, normalized as (… −
// low)·scale, with weights (PARTS, SIZE, ⌈count / DEPTH⌉, SIZE, PADDED_FILTERS, DEPTH), rows of
// filters first, and bias (PADDED_FILTERS,).
extern "C" __global__ void __launch_bounds__(THREADS)
convolve(const float* __restrict__ first, const float* __restrict__ second,
         const int* __restrict__ channels, int count, const float* __restrict__ low,
         const float* __restrict__ scale, const half* __restrict__ weights,
         const float* __restrict__ bias, float* __restrict__ maps) {
    __shared__ __align__(16) half inputs[PARTS][SIDE][SIDE][PITCH];
    __shared__ __align__(16) half filters[PARTS][SIZE][PADDED_FILTERS][PITCH];
    const int chunks = (count + DEPTH - 1) / DEPTH;
    const long image = blockIdx.z;
    const int top = blockIdx.y * TILE, left = blockIdx.x * TILE;
    const int thread = threadIdx.x, row = thread / 32 * 2;
    const int fragment_row = thread % 32 / 4, fragment_column = thread % 4 * 2;
    float sums[2][FILTER_GROUPS][4];
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int f = 0; f < FILTER_GROUPS; f++)
#pragma unroll
            for (int q = 0; q < 4; q++) sums[r][f][q] = 0;
    for (int chunk = 0; chunk < chunks; chunk++) {
        __syncthreads();
        load_inputs(first, second, channels, count, low, scale, chunk, inputs);
        for (int down = 0; down < SIZE; down++) {
            if (down) __syncthreads();
            const int vectors = SIZE * PADDED_FILTERS * DEPTH / 8;  // of a part, eight numbers each
            for (int t = thread; t < PARTS * vectors; t += THREADS) {
                int part = t / vectors, position = t % vectors * 8;
                const half* source =
                    weights +
                    (((long)part * SIZE + down) * chunks + chunk) * vectors * 8 + position;
                half* output =
                    &filters[part][0][0][0] + position / DEPTH * PITCH + position % DEPTH;
                *(uint4*)output = *(const uint4*)source;
            }
            __syncthreads();
#pragma unroll 1
            for (int right = 0; right < SIZE; right++) {
                unsigned a[PARTS][2][4];
#pragma unroll
                for (int p = 0; p < PARTS; p++)
#pragma unroll
                    for (int r = 0; r < 2; r++)
#pragma unroll
                        for (int q = 0; q < 4; q++)
                            a[p][r][q] = load_pair(
                                &inputs[p][row + r + down][right + fragment_row + q % 2 * 8]
                                       [fragment_column + q / 2 * 8]);
#pragma unroll
                for (int f = 0; f < FILTER_GROUPS; f++) {
                    const half* fragment =
                        &filters[0][right][8 * f + fragment_row][fragment_column];
                    unsigned b[2] = {load_pair(fragment), load_pair(fragment + 8)};
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        multiply(sums[r][f], a[0][r], b);
                        if (SPLIT) multiply(sums[r][f], a[PARTS - 1][r], b);
                    }
                    if (SPLIT) {
                        fragment =
                            &filters[PARTS - 1][right][8 * f + fragment_row][fragment_column];
                        b[0] = load_pair(fragment), b[1] = load_pair(fragment + 8);
#pragma unroll
                        for (int r = 0; r < 2; r++) multiply(sums[r][f], a[0][r], b);
                    }
                }
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int q = 0; q < 4; q++) {
            int y = top + row + r, x = left + fragment_row + q / 2 * 8;
            if (y >= HEIGHT || x >= WIDTH) continue;
            float* output = maps + ((image * HEIGHT + y) * WIDTH + x) * TOTAL_FILTERS;
#pragma unroll
            for (int f = 0; f < FILTER_GROUPS; f++) {
                int filter = 8 * f + fragment_column + q % 2;
                if (filter < FILTERS) output[filter] = sums[r][f][q] + bias[filter];
            }
        }
}
