"""What a start would find and do, without starting anything."""
