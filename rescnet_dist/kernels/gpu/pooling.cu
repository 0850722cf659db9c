// Second-order pooling on a GPU: normalized covariances of the channels of ReLU(maps) in every
// block, pooled into the cells of a pyramid. The host defines, for one network: FILTERS, HEIGHT,
// WIDTH (pixels), BLOCK, STRIDE, ROWS, COLUMNS (of blocks), SIDE = gcd(BLOCK, STRIDE), LENGTH =
// BLOCK / SIDE and STEP = STRIDE / SIDE (in cells of SIDE pixels), CELL_ROWS, CELL_COLUMNS, PAIRS,
// CELLS (of the pyramid), LEVELS (that blocks are pooled into directly), BINS (columns of the
// widest level), TASKS, GROUPS (of threads that share an image), CHANNELWISE, POWER, USE_MAX, RING
// (whether a thread holds the sums of a block's rows of cells), PARENT_COUNT, and the tables
// FIRST_CELL, BIN_COUNT, BIN_OF_ROW, BIN_OF_COLUMN, PARENTS.

#define AREA (BLOCK * BLOCK)
#define PARTNERS 2  // of a channel, that a thread computes pairs with
#define MINUS_INFINITY __int_as_float(0xff800000)
#define NOT_A_NUMBER __int_as_float(0x7fffffff)
// Fraction of the mean square, below which a channel counts as constant in its block
#define MIN_BLOCK_VARIANCE_FRACTION 1e-8
// Fraction of the mean square about the image's mean, below which a block is recomputed by pixels
#define RECOMPUTE_VARIANCE_FRACTION 1e-4

__device__ const int first_cell[LEVELS] = FIRST_CELL;
__device__ const int bin_count[LEVELS] = BIN_COUNT;
__device__ const int bin_of_row[LEVELS][ROWS] = BIN_OF_ROW;
__device__ const int parents[PARENT_COUNT + 1][2] = PARENTS;

// ReLU that propagates NaN.
__device__ __forceinline__ float relu(float x) { return x < 0 ? 0.0f : x; }

// Compute values, ReLU(maps) minus its mean over the image, and overall (n, f), these means. A
// block of FILTERS · GROUPS threads processes an image, each thread one channel of every GROUPS-th
// pixel.
extern "C" __global__ void __launch_bounds__(FILTERS* GROUPS)
center(const float* __restrict__ maps, float* __restrict__ values, float* __restrict__ overall) {
    __shared__ double sums[GROUPS][FILTERS];
    const int a = threadIdx.x % FILTERS, group = threadIdx.x / FILTERS;
    const long first = (long)blockIdx.x * HEIGHT * WIDTH * FILTERS + threadIdx.x;
    double total = 0;
#pragma unroll 4
    for (int p = group, index = 0; p < HEIGHT * WIDTH; p += GROUPS, index += GROUPS * FILTERS)
        total += relu(maps[first + index]);
    sums[group][a] = total;
    __syncthreads();
    total = 0;
    for (int g = 0; g < GROUPS; g++) total += sums[g][a];
    const float mean = (float)(total / (HEIGHT * WIDTH));
    if (group == 0) overall[(long)blockIdx.x * FILTERS + a] = mean;
#pragma unroll 4
    for (int p = group, index = 0; p < HEIGHT * WIDTH; p += GROUPS, index += GROUPS * FILTERS)
        values[first + index] = relu(maps[first + index]) - mean;
}

// Compute the sum and the sum of squares of a channel over BLOCK pixels of a line.
__device__ __forceinline__ void sum_line(const float* line, double& sum, double& square) {
    sum = square = 0;
#pragma unroll
    for (int x = 0; x < BLOCK; x++) {
        double v = line[x * FILTERS];
        sum += v;
        square += v * v;
    }
}

// Compute means and inverse (n, rows, columns, f): the mean and 1/deviation of each channel in each
// block. The latter is 0 without variance, and negative if a block is to be recomputed by its
// pixels. Blocks of FILTERS threads (padded to a multiple of 32), one for each image and column of
// blocks.
extern "C" __global__ void normalize(const float* __restrict__ values,
                                     const float* __restrict__ overall,
                                     float* __restrict__ means, float* __restrict__ inverse) {
    long image = blockIdx.x;
    int column = blockIdx.y, a = threadIdx.x;
    bool is_channel = a < FILTERS;
    const float* line = values + image * HEIGHT * WIDTH * FILTERS + column * STRIDE * FILTERS + a;
    double sum = 0, square = 0, line_sum, line_square;
    for (int y = 0; y < (ROWS - 1) * STRIDE + BLOCK; y++) {
        if (is_channel) {
            sum_line(line + y * WIDTH * FILTERS, line_sum, line_square);
            sum += line_sum;
            square += line_square;
            if (y >= BLOCK) {
                sum_line(line + (y - BLOCK) * WIDTH * FILTERS, line_sum, line_square);
                sum -= line_sum;
                square -= line_square;
            }
        }
        int top = y - BLOCK + 1;
        if (top < 0 || top % STRIDE) continue;
        double mean = sum / AREA, mean_square = square / AREA, variance = mean_square - mean * mean;
        double level = is_channel ? mean + overall[image * FILTERS + a] : 0;
        double scale = 0;
        if (CHANNELWISE) {
            if (variance > MIN_BLOCK_VARIANCE_FRACTION * (variance + level * level))
                scale = rsqrt(variance);
        } else {
            __shared__ double sums[3][64];
            for (int q = 0; q < 3; q++) {  // levels, then spread and mean square of all channels
                double grand_mean = q ? sums[0][0] / FILTERS : 0;
                double value = !is_channel ? 0
                               : q == 0 ? level
                               : q == 1 ? variance + (level - grand_mean) * (level - grand_mean)
                                        : variance + level * level;
                __syncthreads();
                for (int lane_offset = 16; lane_offset; lane_offset >>= 1)
                    value += __shfl_down_sync(~0u, value, lane_offset);
                if (threadIdx.x % 32 == 0) sums[q][threadIdx.x / 32] = value;
                __syncthreads();
                if (threadIdx.x == 0)
                    for (int w = 1; w < blockDim.x / 32; w++) sums[q][0] += sums[q][w];
                __syncthreads();
            }
            if (sums[1][0] > MIN_BLOCK_VARIANCE_FRACTION * sums[2][0])
                scale = sqrt(FILTERS / sums[1][0]);
            __syncthreads();
        }
        if (is_channel) {
            long index = ((image * ROWS + top / STRIDE) * COLUMNS + column) * FILTERS + a;
            means[index] = (float)mean;
            inverse[index] =
                (float)(variance > RECOMPUTE_VARIANCE_FRACTION * mean_square ? scale : -scale);
        }
    }
}

// Compute sums[c] of LENGTH cells starting at STEP · c.
__device__ __forceinline__ void sum_windows(const float cells[CELL_COLUMNS], float sums[COLUMNS]) {
    if (LENGTH <= 4) {
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            sums[c] = cells[c * STEP];
#pragma unroll
            for (int t = 1; t < LENGTH; t++) sums[c] += cells[c * STEP + t];
        }
        return;
    }
    // the end of one run of LENGTH cells and the beginning of the next: nothing is subtracted
    const int last = (COLUMNS - 1) * STEP;
#pragma unroll
    for (int run = 0; run <= last; run += LENGTH) {
        float total = 0;
#pragma unroll
        for (int x = run + LENGTH - 1; x >= run; x--) {
            total += cells[x];
            if (x % STEP == 0 && x <= last) sums[x / STEP] = total;
        }
        total = 0;
#pragma unroll
        for (int x = run + 1; x < run + LENGTH; x++)
            if (x <= last) {
                total += cells[x + LENGTH - 1];
                if (x % STEP == 0) sums[x / STEP] += total;
            }
    }
}

// Compute sums[b][c] of the products of channel i with channel j (b = 0) or next_j (b = 1) over row
// `cell_row` of cells in column c of blocks. Channel i is read once for both.
__device__ __forceinline__ void sum_row(const float* __restrict__ image, int cell_row, int i,
                                        int j, int next_j, float sums[PARTNERS][COLUMNS]) {
    float cells[PARTNERS][CELL_COLUMNS];
#pragma unroll
    for (int c = 0; c < CELL_COLUMNS; c++)
#pragma unroll
        for (int b = 0; b < PARTNERS; b++) cells[b][c] = 0;
    const float* line = image + cell_row * SIDE * WIDTH * FILTERS;
#pragma unroll 1
    for (int y = 0; y < SIDE; y++, line += WIDTH * FILTERS)
#pragma unroll
        for (int c = 0; c < CELL_COLUMNS; c++)
#pragma unroll
            for (int x = 0; x < SIDE; x++) {
                const float* pixel = line + (c * SIDE + x) * FILTERS;
                const float value = __ldg(pixel + i);
                cells[0][c] = fmaf(value, __ldg(pixel + j), cells[0][c]);
                cells[1][c] = fmaf(value, __ldg(pixel + next_j), cells[1][c]);
            }
#pragma unroll
    for (int b = 0; b < PARTNERS; b++) sum_windows(cells[b], sums[b]);
}

// Compute the covariance of two channels of a block, of these means, from its pixels.
__device__ __noinline__ float covariance_from_pixels(const float* block, int i, int j,
                                                     float mean_i, float mean_j) {
    float total = 0;
    for (int y = 0; y < BLOCK; y++)
        for (int x = 0; x < BLOCK; x++) {
            const float* pixel = block + (y * WIDTH + x) * FILTERS;
            total = fmaf(pixel[i] - mean_i, pixel[j] - mean_j, total);
        }
    return total / AREA;
}

// Pool two values by the maximum or by the sum.
__device__ __forceinline__ float pool_values(float one, float other) {
    return USE_MAX ? fmaxf(one, other) : one + other;
}

// Compute pooled (n, cells, pairs). One thread computes two pairs of channels of an image, or one.
// tasks (m, 4): the channel, its first partner, the distance of its second partner, 0 if there is
// none, and the first pair.
extern "C" __global__ void pool(const float* __restrict__ values,
                                const float* __restrict__ overall,
                                const float* __restrict__ means,
                                const float* __restrict__ inverse,
                                const int4* __restrict__ tasks, float* __restrict__ pooled) {
    const int bin_of_column[LEVELS][COLUMNS] = BIN_OF_COLUMN;  // constant in unrolled loops
    const long image = blockIdx.y;
    const int task = blockIdx.x * blockDim.x + threadIdx.x;
    if (task >= TASKS) return;
    const int i = tasks[task].x, distance = tasks[task].z, count = distance ? 2 : 1;
    const int partner[PARTNERS] = {tasks[task].y, tasks[task].y + distance};
    const float* source = values + image * HEIGHT * WIDTH * FILTERS;
    float* output = pooled + image * CELLS * PAIRS + tasks[task].w;
    for (int p = 0; p < PARENT_COUNT; p++)
        for (int b = 0; b < count; b++)
            output[parents[p][1] * PAIRS + b * distance] = USE_MAX ? MINUS_INFINITY : 0;
    float bins[PARTNERS][LEVELS][BINS];
#pragma unroll
    for (int l = 0; l < LEVELS; l++)
#pragma unroll
        for (int n = 0; n < BINS; n++) bins[0][l][n] = bins[1][l][n] = USE_MAX ? MINUS_INFINITY : 0;
#if RING
    float ring[LENGTH][PARTNERS][COLUMNS];
#else
    double running[PARTNERS][COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) running[0][c] = running[1][c] = 0;
#endif
#pragma unroll 1
    for (int y = 0; y < CELL_ROWS; y++) {
        float sums[PARTNERS][COLUMNS];
        sum_row(source, y, i, partner[0], partner[1], sums);
#if RING
#pragma unroll
        for (int b = 0; b < PARTNERS; b++)
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
#pragma unroll
                for (int t = 1; t < LENGTH; t++) ring[t - 1][b][c] = ring[t][b][c];
                ring[LENGTH - 1][b][c] = sums[b][c];
            }
#else
#pragma unroll
        for (int b = 0; b < PARTNERS; b++)
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) running[b][c] += sums[b][c];
        if (y >= LENGTH) {
            sum_row(source, y - LENGTH, i, partner[0], partner[1], sums);
#pragma unroll
            for (int b = 0; b < PARTNERS; b++)
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) running[b][c] -= sums[b][c];
        }
#endif
        const int top = y - LENGTH + 1;
        if (top < 0 || top % STEP) continue;
        const int row = top / STEP;
        const long index = (image * ROWS + row) * COLUMNS * FILTERS;
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            const float mean_i = __ldg(means + index + c * FILTERS + i);
            const float scale_i = __ldg(inverse + index + c * FILTERS + i);
#pragma unroll
            for (int b = 0; b < PARTNERS; b++) {
                const int j = partner[b];
                const float mean_j = __ldg(means + index + c * FILTERS + j);
                const float scale_j = __ldg(inverse + index + c * FILTERS + j);
#if RING
                float sum = ring[0][b][c];
#pragma unroll
                for (int t = 1; t < LENGTH; t++) sum += ring[t][b][c];
#else
                float sum = (float)running[b][c];
#endif
                float covariance = fmaf(sum, 1.0f / AREA, -mean_i * mean_j);
                if (scale_i < 0 || scale_j < 0) {
                    const float* block = source + (row * STRIDE * WIDTH + c * STRIDE) * FILTERS;
                    covariance = covariance_from_pixels(block, i, j, mean_i, mean_j);
                }
                float entry = covariance * fabsf(scale_i * scale_j);
                if (POWER) entry = copysignf(sqrtf(fabsf(entry)), entry);
#pragma unroll
                for (int l = 0; l < LEVELS; l++) {
                    const int n = bin_of_column[l][c];
                    bins[b][l][n] = pool_values(bins[b][l][n], entry);
                }
            }
        }
#pragma unroll
        for (int l = 0; l < LEVELS; l++) {
            const int bin = bin_of_row[l][row];
            if (row + 1 < ROWS && bin_of_row[l][row + 1] == bin) continue;
#pragma unroll
            for (int n = 0; n < BINS; n++)
                if (n < bin_count[l]) {
                    float* cell_output = output + (first_cell[l] + bin * bin_count[l] + n) * PAIRS;
#pragma unroll
                    for (int b = 0; b < PARTNERS; b++) {
                        if (b < count) cell_output[b * distance] = bins[b][l][n];
                        bins[b][l][n] = USE_MAX ? MINUS_INFINITY : 0;
                    }
                }
        }
    }
    for (int p = 0; p < PARENT_COUNT; p++)
        for (int b = 0; b < count; b++) {
            float* parent = output + parents[p][1] * PAIRS + b * distance;
            *parent = pool_values(*parent, output[parents[p][0] * PAIRS + b * distance]);
        }
    // fmaxf would drop NaN
    for (int b = 0; b < count; b++)
        if (!isfinite(overall[image * FILTERS + i] + overall[image * FILTERS + partner[b]]))
            for (int cell = 0; cell < CELLS; cell++)
                output[cell * PAIRS + b * distance] = NOT_A_NUMBER;
}
