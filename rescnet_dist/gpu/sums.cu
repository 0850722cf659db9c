// The least, the largest, and the sum of every column of a matrix, in one reading of it.

// low, high and sums (parts, columns) of source (rows, columns), rows of which are so far apart and of
// which each part has `step`. Without low, sums are all that is wanted.
extern "C" __global__ void gather(const float* __restrict__ source, float* __restrict__ low,
                                  float* __restrict__ high, double* __restrict__ sums, long rows,
                                  long columns, long pitch, long step) {
    long column = blockIdx.x * (long)blockDim.x + threadIdx.x, part = blockIdx.y;
    if (column >= columns) return;
    long end = min(rows, (part + 1) * step);
    float least = source[part * step * pitch + column], most = least;
    double sum = 0.0;
#pragma unroll 8
    for (long row = part * step; row < end; row++) {
        float value = source[row * pitch + column];
        least = fminf(least, value);
        most = fmaxf(most, value);
        sum += value;
    }
    long into = part * columns + column;
    sums[into] = sum;
    if (!low) return;
    low[into] = least;
    high[into] = most;
}
