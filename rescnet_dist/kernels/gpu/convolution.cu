// The convolution of a layer on a GPU, in single precision. Its input is the channels of two
// arrays, maps and image, which are normalized when they are read. The host defines FIRST_CHANNELS
// and SECOND_CHANNELS (of the two arrays), FILTERS (of this launch), TOTAL_FILTERS (of the layer),
// SIZE (of a filter), HEIGHT, WIDTH, and the tile sizes: a block of threads computes all FILTERS of
// TILE_ROWS × TILE_COLUMNS pixels, each thread four filters of LINE_PIXELS adjacent pixels of a
// row; DEPTH channels are in shared memory at a time.

#define GROUPS ((FILTERS + 3) / 4)
#define LINES (TILE_COLUMNS / LINE_PIXELS)
#define IN_ROWS (TILE_ROWS + SIZE - 1)
#define IN_COLUMNS (TILE_COLUMNS + SIZE - 1)
#define BEFORE ((SIZE - 1) / 2)

// Compute maps (n, H, W, FILTERS of TOTAL_FILTERS) from the channels (count,) of first (n, H, W,
// FIRST_CHANNELS) and second (n, H, W, SECOND_CHANNELS), numbered through both, normalized as (… −
// low)·scale, with weights (SIZE, SIZE, count, 4·GROUPS) and bias (4·GROUPS,), padded with zeros.
extern "C" __global__ void __launch_bounds__(GROUPS * TILE_ROWS * LINES)
convolve(const float* __restrict__ first, const float* __restrict__ second,
         const int* __restrict__ channels, int count, const float* __restrict__ low,
         const float* __restrict__ scale, const float4* __restrict__ weights,
         const float4* __restrict__ bias, float* __restrict__ maps) {
    __shared__ float inputs[DEPTH][IN_ROWS][IN_COLUMNS + 1];
    __shared__ float4 filters[DEPTH][SIZE][SIZE][GROUPS];
    const long image = blockIdx.z;
    const int top = blockIdx.y * TILE_ROWS, left = blockIdx.x * TILE_COLUMNS;
    const int thread = threadIdx.x, threads = GROUPS * TILE_ROWS * LINES;
    const int group = thread % GROUPS, position = thread / GROUPS;
    const int row = position / LINES, column = position % LINES * LINE_PIXELS;
    float4 sums[LINE_PIXELS];
#pragma unroll
    for (int p = 0; p < LINE_PIXELS; p++) sums[p] = make_float4(0, 0, 0, 0);
    for (int begin = 0; begin < count; begin += DEPTH) {
        __syncthreads();
        for (int t = thread; t < DEPTH * IN_ROWS * IN_COLUMNS; t += threads) {
            int c = begin + t % DEPTH, x = t / DEPTH % IN_COLUMNS, y = t / DEPTH / IN_COLUMNS;
            int source_y = top + y - BEFORE, source_x = left + x - BEFORE;
            float value = 0;
            if (c < count && source_y >= 0 && source_y < HEIGHT && source_x >= 0 &&
                source_x < WIDTH) {
                long pixel = (image * HEIGHT + source_y) * WIDTH + source_x;
                int channel = channels[c];
                value = channel < FIRST_CHANNELS
                            ? first[pixel * FIRST_CHANNELS + channel]
                            : second[pixel * SECOND_CHANNELS + channel - FIRST_CHANNELS];
                value = (value - low[c]) * scale[c];
            }
            inputs[t % DEPTH][y][x] = value;
        }
        for (int t = thread; t < DEPTH * SIZE * SIZE * GROUPS; t += threads) {
            int g = t % GROUPS, tap = t / GROUPS % (SIZE * SIZE), c = t / GROUPS / (SIZE * SIZE);
            bool is_channel = begin + c < count;
            filters[c][tap / SIZE][tap % SIZE][g] =
                is_channel ? weights[(tap * count + begin + c) * GROUPS + g]
                      : make_float4(0, 0, 0, 0);
        }
        __syncthreads();
#pragma unroll 1
        for (int c = 0; c < DEPTH; c++)
#pragma unroll(SIZE <= 3 ? SIZE : 1)
            for (int down = 0; down < SIZE; down++) {
                float line[LINE_PIXELS + SIZE - 1];
#pragma unroll
                for (int x = 0; x < LINE_PIXELS + SIZE - 1; x++)
                    line[x] = inputs[c][row + down][column + x];
#pragma unroll
                for (int right = 0; right < SIZE; right++) {
                    float4 w = filters[c][down][right][group];
#pragma unroll
                    for (int p = 0; p < LINE_PIXELS; p++) {
                        sums[p].x = fmaf(line[p + right], w.x, sums[p].x);
                        sums[p].y = fmaf(line[p + right], w.y, sums[p].y);
                        sums[p].z = fmaf(line[p + right], w.z, sums[p].z);
                        sums[p].w = fmaf(line[p + right], w.w, sums[p].w);
                    }
                }
            }
    }
    float4 group_bias = bias[group];
    int y = top + row;
    if (y >= HEIGHT) return;
#pragma unroll
    for (int p = 0; p < LINE_PIXELS; p++) {
        int x = left + column + p;
        if (x >= WIDTH) break;
        float* output = maps + ((image * HEIGHT + y) * WIDTH + x) * TOTAL_FILTERS + 4 * group;
        if (4 * group < FILTERS) output[0] = sums[p].x + group_bias.x;
        if (4 * group + 1 < FILTERS) output[1] = sums[p].y + group_bias.y;
        if (4 * group + 2 < FILTERS) output[2] = sums[p].z + group_bias.z;
        if (4 * group + 3 < FILTERS) output[3] = sums[p].w + group_bias.w;
    }
}
