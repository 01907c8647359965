"""A µGraph as definitions and a schedule, with the maxima and roundings that make it safe."""
