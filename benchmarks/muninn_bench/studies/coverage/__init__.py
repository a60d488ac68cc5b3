"""Does the certificate keep its promise? By simulation, with a closed-form denoiser."""
