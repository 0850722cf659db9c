// Square roots of the correlation matrices of blocks on a GPU: all but the matrix products. The
// host defines, for one network: FILTERS, HEIGHT, WIDTH (pixels), BLOCK, STRIDE, COLUMNS and BLOCKS
// (of an image), PAIRS (of channels), CELLS (of the pyramid), POWER, USE_MAX, USE_MEAN, HALF, and
// the tables FIRST_MEMBER and MEMBERS: the blocks of cell c are members[first_member[c]] …
// members[first_member[c + 1] − 1].

#include <cuda_fp16.h>

#define AREA (BLOCK * BLOCK)
#define MATRIX (FILTERS * FILTERS)
#define POOLS (USE_MAX + USE_MEAN)
#define MINUS_INFINITY __int_as_float(0xff800000)
// Fraction of the mean square, below which a channel counts as constant in its block
#define MIN_VARIANCE_FRACTION 1e-8f
#if HALF
typedef half number;
#else
typedef float number;
#endif

__device__ const int first_member[CELLS + 1] = FIRST_MEMBER;
__device__ const int members[] = MEMBERS;

// ReLU that propagates NaN.
__device__ __forceinline__ float relu(float x) { return x < 0 ? 0.0f : x; }

// Compute values (n, BLOCKS, AREA, FILTERS), the z-scores of ReLU(maps) in each block divided by
// BLOCK, of maps (n, HEIGHT, WIDTH, FILTERS). A block of threads processes a block of an image, each
// thread one channel at a time.
extern "C" __global__ void normalize(const float* __restrict__ maps, number* __restrict__ values) {
    const long image = blockIdx.x / BLOCKS;
    const int place = blockIdx.x % BLOCKS;
    const int top = place / COLUMNS * STRIDE, left = place % COLUMNS * STRIDE;
    const float* pixels = maps + ((image * HEIGHT + top) * WIDTH + left) * FILTERS;
    number* into = values + (long)blockIdx.x * AREA * FILTERS;
    for (int a = threadIdx.x; a < FILTERS; a += blockDim.x) {
        float sum = 0, square = 0;
        for (int y = 0; y < BLOCK; y++)
#pragma unroll
            for (int x = 0; x < BLOCK; x++) sum += relu(pixels[(y * WIDTH + x) * FILTERS + a]);
        const float mean = sum / AREA;
        for (int y = 0; y < BLOCK; y++)
#pragma unroll
            for (int x = 0; x < BLOCK; x++) {
                float v = relu(pixels[(y * WIDTH + x) * FILTERS + a]) - mean;
                square += v * v;
            }
        const float variance = square / AREA;
        const bool constant = variance <= MIN_VARIANCE_FRACTION * (variance + mean * mean);
        const float scale = constant ? 0.0f : 1.0f / (BLOCK * sqrtf(variance));
        for (int y = 0; y < BLOCK; y++)
#pragma unroll
            for (int x = 0; x < BLOCK; x++)
                into[(y * BLOCK + x) * FILTERS + a] =
                    (number)((relu(pixels[(y * WIDTH + x) * FILTERS + a]) - mean) * scale);
    }
}

// Start the iteration: add the ridge to the diagonal of matrices (m, FILTERS, FILTERS), divide them by
// their traces (m), and write the first factors 1.5·I − 0.5·matrix. A warp sums a trace, always in the
// same order; a block of threads processes a matrix.
extern "C" __global__ void start(number* __restrict__ matrices, number* __restrict__ factors,
                                 float* __restrict__ traces, float ridge) {
    number* matrix = matrices + (long)blockIdx.x * MATRIX;
    number* factor = factors + (long)blockIdx.x * MATRIX;
    __shared__ float trace;
    if (threadIdx.x < 32) {
        float sum = 0;
        for (int a = threadIdx.x; a < FILTERS; a += 32)
            sum += (float)matrix[a * (FILTERS + 1)] + ridge;
        for (int distance = 16; distance; distance /= 2)
            sum += __shfl_xor_sync(0xffffffff, sum, distance);
        if (threadIdx.x == 0) traces[blockIdx.x] = trace = sum;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < MATRIX; e += blockDim.x) {
        const bool diagonal = e / FILTERS == e % FILTERS;
        const float value = ((float)matrix[e] + (diagonal ? ridge : 0.0f)) / trace;
        matrix[e] = (number)value;
        factor[e] = (number)((diagonal ? 1.5f : 0.0f) - 0.5f * value);
    }
}

// Replace products (m, FILTERS, FILTERS) by 1.5·I − 0.5·product. A block of threads processes one.
extern "C" __global__ void complement(number* __restrict__ products) {
    number* product = products + (long)blockIdx.x * MATRIX;
    for (int e = threadIdx.x; e < MATRIX; e += blockDim.x)
        product[e] = (number)((e / FILTERS == e % FILTERS ? 1.5f : 0.0f) - 0.5f * (float)product[e]);
}

// Pool the upper triangles of roots (n, BLOCKS, FILTERS, FILTERS) times the root of traces (n,
// BLOCKS) into features (n, CELLS, POOLS, PAIRS). upper (PAIRS) are the places of pairs in a matrix.
// A thread pools one pair of an image.
extern "C" __global__ void pool(const number* __restrict__ roots, const float* __restrict__ traces,
                                const int* __restrict__ upper, float* __restrict__ features) {
    const int groups = (PAIRS + blockDim.x - 1) / blockDim.x;
    const long image = blockIdx.x / groups;
    const int pair = blockIdx.x % groups * blockDim.x + threadIdx.x;
    if (pair >= PAIRS) return;
    const number* entries = roots + image * BLOCKS * MATRIX + upper[pair];
    float* into = features + image * CELLS * POOLS * PAIRS + pair;
    for (int cell = 0; cell < CELLS; cell++) {
        const int first = first_member[cell], last = first_member[cell + 1];
        float largest = MINUS_INFINITY, sum = 0;
#pragma unroll 4
        for (int m = first; m < last; m++) {
            const int place = members[m];
            float v = (float)entries[(long)place * MATRIX] * sqrtf(traces[image * BLOCKS + place]);
            if (POWER) v = copysignf(sqrtf(fabsf(v)), v);
            largest = v > largest || v != v ? v : largest;
            sum += v;
        }
        float* pooled = into + (long)cell * POOLS * PAIRS;
        if (USE_MAX) pooled[0] = largest;
        if (USE_MEAN) pooled[USE_MAX * PAIRS] = sum / (last - first);
    }
}
