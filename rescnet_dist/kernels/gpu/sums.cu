// The minimum, the maximum and the sum of every column of a matrix, in one pass over it.

// Compute low, high and sums (parts, columns) of source (rows, columns), whose rows are `pitch`
// numbers apart; each part has `step` rows. If low is null, only sums are computed. The sums are
// weighted by weights (rows,), unless these are null.
extern "C" __global__ void gather(const float* __restrict__ source,
                                  const double* __restrict__ weights, float* __restrict__ low,
                                  float* __restrict__ high, double* __restrict__ sums, long rows,
                                  long columns, long pitch, long step) {
    long column = blockIdx.x * (long)blockDim.x + threadIdx.x, part = blockIdx.y;
    if (column >= columns) return;
    long end = min(rows, (part + 1) * step);
    float minimum = source[part * step * pitch + column], maximum = minimum;
    double sum = 0.0;
#pragma unroll 8
    for (long row = part * step; row < end; row++) {
        float value = source[row * pitch + column];
        minimum = fminf(minimum, value);
        maximum = fmaxf(maximum, value);
        sum += weights ? weights[row] * value : value;
    }
    long index = part * columns + column;
    sums[index] = sum;
    if (!low) return;
    low[index] = minimum;
    high[index] = maximum;
}
