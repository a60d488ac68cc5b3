"""FrankaKitchen-v1: open the microwave, move the kettle, switch the light, slide the cabinet."""
